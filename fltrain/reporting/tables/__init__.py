"""Tables as Markdown, LaTeX, CSV and HTML."""
