import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { present } from '../../../core/present.ts';
import { forkRun } from '../../../runs/lineages/fork-run.ts';
import { loadRunConfig } from '../../../load/load-run-config.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import { allowSource } from '../../start/allow-source.ts';
import type { Asker, GrantOptions } from '../../start/ask-grants.ts';
import type { Person } from '../../../core/roles.ts';
import { requireRole } from '../../../workers/temporal/who-may.ts';
import { fromHere } from '../../output/from-here.ts';
import { readOverrides } from '../../typed/overrides.ts';
import { findRunFolder, readStep } from '../../stored/run-place.ts';
import { grantOption, storeOption } from '../../typed/store-option.ts';
import { trainAgain } from '../../typed/typed-command.ts';
import { requireSource } from './rewind.ts';
import { print } from '../../output/print.ts';

export const forkCommand = new Command('fork')
  .description('a new run that begins at a checkpoint of another, with settings of its own')
  .argument('<run>')
  .argument('[overrides...]', 'any setting of the run file: --learning-rate 1e-5')
  .requiredOption('--step <n>', 'a step with a checkpoint')
  .requiredOption('--name <new>', "the new run's name")
  .option(
    '--rewards <rescore>',
    'id of a rescore (ratchet rescore): the stored rollouts of the next step are trained with its rewards',
  )
  .option('--config <file>', 'run file, where the one it was last trained with is no longer there')
  .option(...storeOption)
  .option(...grantOption)
  .allowUnknownOption()
  .action(async (run, rest, options) => {
    const place = await findRunFolder(run, options.store);
    const { name, config, rewards } = options;
    const step = readStep(options.step);
    const asked = { step, name, overrides: readOverrides(rest), ...present({ config, rewards }) };
    const { warnings, said } = await forkFrom(place, asked, options);
    for (const warning of warnings) print(warning);
    print(said);
  });

interface Fork {
  readonly step: number;
  readonly name: string;
  /** Over the settings that the run was last trained with. */
  readonly overrides: Readonly<Record<string, string>>;
  readonly config?: string;
  /** Id of a rescore. */
  readonly rewards?: string;
}

/** Begins a new run at a checkpoint of another, once the things it names are granted; returns messages. */
export async function forkFrom(
  place: RunPlace,
  { step, name, overrides: own, config, rewards }: Fork,
  { as, ...options }: GrantOptions & { readonly store?: string | undefined; readonly as?: Person | undefined },
  asker?: Asker,
): Promise<{ readonly warnings: readonly string[]; readonly said: string }> {
  await requireRole(`fork of ${place.name}`, { of: 'own' }, { as });
  const { overrides: before, ...read } = await requireSource(place, config);
  const overrides = { ...before, ...own };
  const file = fromHere(read.config);
  const named = {
    over: (read.over ?? []).map((layer) => ({ ...layer, file: fromHere(layer.file) })),
    ...present({ dialect: read.dialect }),
  };
  const load = { projectFolder: process.cwd(), run: name, ...named };
  // Only examined before it is granted: a file that it names may be the user's, and the store another user's.
  const looked = await loadRunConfig(file, { ...load, overrides, isOnlyLookedAt: true });
  const stored = { place, file, load: { ...load, overrides: before }, typed: own, store: options.store };
  await allowSource({ ...stored, isFileTyped: config !== undefined }, looked.spec, options, asker);
  const { spec, warnings } = await loadRunConfig(file, { ...load, overrides });
  const source = { ...read, config: path.resolve(read.config), overrides };
  const { store } = await forkRun({ from: place, step, spec, source, rewards });
  const next = trainAgain({ file, ...named, name, overrides });
  return {
    warnings: warnings.map((warning) => `warning: ${warning}`),
    said: [
      `${name} begins at step ${step} of ${place.name}, in ${store}`,
      ...(rewards === undefined
        ? []
        : [
            `step ${step + 1} is trained on stored rollouts with the rewards of ${rewards}; later steps are sampled, and scored by the run's own rubric`,
          ]),
      `next    ${next}`,
    ].join('\n'),
  };
}
