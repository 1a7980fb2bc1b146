"""What a person sees: text that is safe to show, tables, status lines, pages in a browser."""
