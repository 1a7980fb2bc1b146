#!/bin/bash
#SBATCH --licenses=matlab:1
#SBATCH --time=1:00:00

matlab -batch "run('fit.m')"
