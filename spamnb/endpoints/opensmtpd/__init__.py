"""OpenSMTPD starts a process of this package as a filter; it asks a scanner listener."""
