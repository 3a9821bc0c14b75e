"""Prism: which model lives on which device, and which request goes next."""
