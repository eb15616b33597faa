import type { Command } from 'commander';
import { trainingCommand } from './train.ts';

/** `ratchet train` under other trainers' names, with the same options. */

export const rlCommand: Command = trainingCommand(
  'rl',
  "train, typed as prime-rl's rl: rl @ base.toml @ mine.toml --ckpt",
);

export const primeRlCommand: Command = trainingCommand(
  'prime-rl',
  "train, typed as the documents' prime-rl: prime-rl @ FILE, or prime-rl FILE",
);

export const vfRlCommand: Command = trainingCommand('vf-rl', "train, typed as verifiers' vf-rl: vf-rl @ FILE");
