"""The report page: one or several runs as one self-contained HTML file.

`page_run` reads the runs that a page shows, `sections` writes them as plain HTML, and `write` puts everything into
`report.html`, with the data of the timelines that `timeline.js` draws.
"""
