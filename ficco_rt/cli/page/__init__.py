"""The report page: one or several runs as one HTML page that needs nothing else.

`runs` reads what a page shows, `sections` writes it as plain HTML, `lanes` gives the timelines' data to `timeline.js`,
and `write` puts these into `report.html`.
"""
