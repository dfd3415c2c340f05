"""`ficco lsp`: a language server for editors. It answers requests on syntax and names at once, and proves in the
background."""
