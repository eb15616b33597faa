import { RatchetError } from '../../core/errors.ts';
import { nearestName } from '../../core/suggest.ts';
import type { Dialect } from './dialect.ts';
import { flat } from './flat.ts';
import { grpo } from './grpo.ts';
import { hosted, hosted0561, hosted0635 } from './hosted.ts';
import { primeRl04 } from './prime-rl/prime-rl-04.ts';
import { primeRlSft } from './prime-rl/prime-rl-sft.ts';
import { primeRl, primeRl05, primeRl09 } from './prime-rl/prime-rl.ts';
import { ratchet } from './ratchet-dialect.ts';
import { vfRl } from './vf-rl.ts';

/** All dialects of run files. If the keys are ambiguous, the first that fits wins. */
export const dialects: readonly Dialect[] = [
  hosted,
  hosted0635,
  hosted0561,
  flat,
  vfRl,
  grpo,
  primeRl,
  primeRl09,
  primeRl05,
  primeRl04,
  primeRlSft,
  ratchet,
];

/** The dialect of that name; throws ConfigInvalid for an unknown name. */
export function dialectNamed(name: string): Dialect {
  const found = dialects.find((dialect) => dialect.name === name);
  if (found) return found;
  const names = dialects.map((dialect) => dialect.name);
  const nearest = nearestName(name, names);
  const meant = nearest === undefined ? '' : ` Did you mean "${nearest}"?`;
  throw new RatchetError(
    'ConfigInvalid',
    `--dialect: expected one of ${names.join(', ')}, got ${JSON.stringify(name)}.${meant}`,
  );
}
