import { RatchetError } from '../../core/errors.ts';
import type { Person } from '../../core/roles.ts';
import { runNamePattern } from '../../core/names.ts';
import type { SteerRun } from '../../ui/serve.ts';
import { shellWord } from '../../workers/stack/service.ts';
import { forkFrom } from '../commands/run/fork.ts';
import { askUpdate, readSettings } from '../commands/run/steer.ts';

/** Steering requests of a page opened with --steer: the same as the commands of these names. */
export const steerFromPage =
  (store: string): SteerRun =>
  (run, { what, value }, guest) => {
    const as = guest ?? undefined;
    switch (what) {
      case 'pause':
        return askUpdate(run, 'pause', [value.trim() || 'asked to, from the page'], as);
      case 'resume':
      case 'stop':
        return askUpdate(run, what, [null], as);
      case 'set':
        return askUpdate(run, 'set', [readSettings(value.trim().split(/\s+/), run)], as);
      case 'rewind':
        return askUpdate(run, 'rewind', [Number(value)], as);
      case 'fork':
        return fork({ name: run, store }, value, as);
      case 'adopt-prompt':
        return askUpdate(run, 'adopt-prompt', [value === '' ? null : value], as);
      default:
        return what satisfies never;
    }
  };

async function fork(
  place: { readonly name: string; readonly store: string },
  value: string,
  as?: Person,
): Promise<string> {
  const [step = '', name = '', ...rest] = value.trim().split(/\s+/);
  if (!/^\d+$/.test(step) || !runNamePattern.test(name) || rest.length > 0)
    throw new RatchetError(
      'ConfigInvalid',
      `fork: expected a step and a name, as in 50 words-again; got ${JSON.stringify(value)}.`,
    );
  // The page cannot ask back: its answer names the command to type at a terminal.
  const asked = { step: Number(step), name, overrides: {} };
  const typed = ['npx ratchet-rl fork', place.name, '--step', step, '--name', name, '--store', shellWord(place.store)];
  const nobody = { isThere: false, ask: () => Promise.resolve(''), command: typed.join(' ') };
  const { warnings, said } = await forkFrom(place, asked, { store: place.store, as }, nobody);
  return [...warnings, said].join('\n');
}
