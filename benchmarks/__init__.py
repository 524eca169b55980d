"""Figures about everlog, as ratios measured in one run: machines differ and are shared."""
