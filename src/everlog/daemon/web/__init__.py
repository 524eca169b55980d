"""The web page: its routes and templates, one style sheet and one JavaScript module."""
