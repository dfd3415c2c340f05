"""`ficco lsp`: a language server for editors. It answers for syntax and names at once, and proves in the background."""
