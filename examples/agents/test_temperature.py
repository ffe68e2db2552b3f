import unittest

from temperature import show


class Temperatures(unittest.TestCase):
    def test_a_temperature_has_its_unit(self) -> None:
        assert show(21.5).startswith("21.5 °C")


if __name__ == "__main__":
    unittest.main()
