"""From weights to integers and scales: what is stored how, by search or by calibration."""
