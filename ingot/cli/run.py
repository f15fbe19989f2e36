NAME="run"
SUMMARY="x"
def add_arguments(p): pass
def main(a): "x"
