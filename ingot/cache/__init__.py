"""What is kept because making it takes long: compiled artifacts, and what builds left behind."""
