"""The Maildir watcher: learns from the folders into which users move messages."""
