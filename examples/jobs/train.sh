#!/bin/bash
#SBATCH --job-name=train-llm
#SBATCH --account=research
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
#SBATCH --cpus-per-task=64
#SBATCH --mem=512G
#SBATCH --time=1-12:00:00
#SBATCH --requeue
#SBATCH --export=WANDB_MODE=offline

srun python train.py
