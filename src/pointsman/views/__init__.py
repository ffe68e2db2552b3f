"""Answers as values: why something waits, what can be done next, who is alive.

Interfaces print or serve them, and decide nothing.

    rows ──load──▶ RunRecords, Fleet ──▶ waiting.py   why a task or a run waits
                                    ──▶ forecast.py  what a signal would lead to
                                    ──▶ steps.py     what a person can do now
                                    ──▶ runs.py, workers.py   the views themselves

Each view takes a fixed number of queries, however many runs and tasks there are.
"""
