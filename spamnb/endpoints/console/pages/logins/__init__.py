"""The logins of the pages: what a visitor is, and the page that shows all."""
