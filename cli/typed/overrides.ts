import { RatchetError } from '../../core/errors.ts';

/**
 * `--sampling.temperature 0.7 --max-steps=5` as dotted keys with values as typed. A bare `--wandb` is true, a bare `--no-wandb` is
 * `wandb` and false. Spelling is checked with the config.
 */
export function readOverrides(args: readonly string[]): Record<string, string> {
  const overrides = new Map<string, string>();
  for (let i = 0; i < args.length; i++) {
    const [, key, attached] = /^--([^=]+)(?:=(.*))?$/s.exec(args[i]!) ?? [];
    if (key === undefined) {
      throw new RatchetError('ConfigInvalid', `Command line: expected --key value, got ${JSON.stringify(args[i])}.`);
    }
    const next = args[i + 1];
    if (attached !== undefined) overrides.set(key, attached);
    else if (next === undefined || next.startsWith('--')) {
      const off = /^(.*\.)?no[-_](.+)$/s.exec(key);
      overrides.set(off ? `${off[1] ?? ''}${off[2]!}` : key, off ? 'false' : 'true');
    } else {
      overrides.set(key, next);
      i += 1;
    }
  }
  return Object.fromEntries(overrides); // Keeps a key called `__proto__`, so that it can be refused.
}
