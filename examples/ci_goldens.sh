#!/bin/sh
# What a CI runs for people who ship a model: one file of goldens judges every artifact of it.
#
#     sh examples/ci_goldens.sh MODEL_DIR FOLDER
#
# FOLDER keeps the goldens and the artifacts. Commit the goldens. Remove the file only when the model
# is to change: it is then recorded anew, and its diff shows what that did to the outputs.
set -eu
model=$1 folder=$2

mkdir -p "$folder"
if [ ! -e "$folder/goldens.json" ]; then
    ingot golden record "$model" -o "$folder/goldens.json"
fi

ingot compile "$model" -o "$folder/bfloat16.ingot" --dtype bfloat16 --force
ingot compile "$model" -o "$folder/int4.ingot" --quantize int4 --force

# Ends with exit code 4 at the first artifact that is further off than its number format explains.
for artifact in "$folder"/*.ingot; do
    ingot verify "$artifact" --golden "$folder/goldens.json"
done
