"""Temperatures of a weather station, for people."""


def show(celsius: float) -> str:
    return f"{celsius} °C"
