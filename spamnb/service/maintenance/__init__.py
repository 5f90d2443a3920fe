"""Work on the journal: rewind, relearn, undo, attribution, expiry, export."""
