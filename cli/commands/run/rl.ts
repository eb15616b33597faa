import { trainingCommand } from './train.ts';

/** `ratchet train` under other trainers' names, with the same options. */

export const rlCommand = trainingCommand('rl', "train, typed as prime-rl's rl: rl @ base.toml @ mine.toml --ckpt");

export const primeRlCommand = trainingCommand(
  'prime-rl',
  "train, typed as the documents' prime-rl: prime-rl @ FILE, or prime-rl FILE",
);

export const vfRlCommand = trainingCommand('vf-rl', "train, typed as verifiers' vf-rl: vf-rl @ FILE");
