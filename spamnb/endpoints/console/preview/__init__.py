"""The preview of a message: a safe HTML document made from hostile mail."""
