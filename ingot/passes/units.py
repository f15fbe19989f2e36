"""What threads own of a product, for passes that move work into it."""

# Columns that one thread has together, in products of any dtype: whole panels, as kernels assert.
UNIT_COLUMNS = 64
