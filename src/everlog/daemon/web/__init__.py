"""The page for people: templates, one style sheet, one module, and the routes that fill them."""
