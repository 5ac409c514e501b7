"""Measures gatewise beside other libraries: same process, same arrays, same threads, taking turns.

`shapes` says what is measured, `work` makes the arrays, `rivals/` has one adapter per library, `timing` takes turns,
`measure` fills a report (a plain dictionary, the JSON file), `tables` and `plot` show one. Nothing here is imported by
`import gatewise`.
"""
