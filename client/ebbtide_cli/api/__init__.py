"""The Python API behind `ebbtide.cluster`: what `ebb` does, for notebooks, pipelines and tuners."""
