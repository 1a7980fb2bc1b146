#!/bin/sh
#SBATCH -J short -G 2 -c4
#SBATCH -t 90 -n 1 # ninety minutes
#SBATCH -D /tmp -H
##SBATCH --gres=gpu:8
#  a comment

echo in $(pwd)
#SBATCH --gres=gpu:7
