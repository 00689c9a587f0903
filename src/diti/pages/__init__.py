"""HTML: templates, the page that reports and explorations share, and boxes for notebooks."""
