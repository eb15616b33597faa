import { WorkflowUpdateFailedError } from '@temporalio/client';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { storedSpec } from '../../../runs/forms/stored-spec.ts';
import { requireReachable } from '../../../runs/lineages/lineages.ts';
import type { SpecSource } from '../../../runs/forms/spec-source.ts';
import { currentLineage } from '../../../runs/run-access.ts';
import type { RunSpec } from '../../../config/run-spec.ts';
import { allowSource } from '../../start/allow-source.ts';
import { connect, findRunning, temporalHere } from '../../../workers/temporal/client.ts';
import { ownerInFolder, ownerOf, requireRole } from '../../../workers/temporal/who-may.ts';
import { fromHere } from '../../output/from-here.ts';
import { rootMessage } from '../../../workers/temporal/root-message.ts';
import { findRunFolder, readStep } from '../../stored/run-place.ts';
import { grantOption, storeOption } from '../../typed/store-option.ts';
import { train } from './train.ts';
import { print } from '../../output/print.ts';

export const rewindCommand = new Command('rewind')
  .description('continue from an earlier step in a new lineage; later steps stay in the store')
  .argument('<run>')
  .requiredOption('--step <n>', 'a committed step (ratchet checkpoints RUN lists those that can be chosen)')
  .option('--config <file>', 'run file, where the one it was last trained with is no longer there')
  .option(...storeOption)
  .option(...grantOption)
  .action(async (run, options) => {
    const step = readStep(options.step);
    const answer = await askRunning(run, step);
    if (answer !== null) {
      print(answer);
      return;
    }
    const place = await findRunFolder(run, options.store);
    await requireRole('rewind', { of: 'run', run, owner: ownerInFolder(place) });
    await requireReachable({ ...place, lineage: await currentLineage(place) }, step);
    const { config, over = [], dialect, overrides } = await requireSource(place, options.config);
    const line = {
      file: fromHere(config),
      over: over.map((layer) => ({ ...layer, file: fromHere(layer.file) })),
      overrides,
    };
    const named = dialect === undefined ? {} : { dialect };
    const source = {
      place,
      file: line.file,
      load: { projectFolder: process.cwd(), run, over: line.over, overrides, ...named },
      typed: {},
      isFileTyped: options.config !== undefined,
      store: options.store,
    };
    const allow = (spec: RunSpec): Promise<void> => allowSource(source, spec, options);
    process.exitCode = await train(line, { name: run, rewind: step, allow, ...named });
  });

/** Null when the run is not running anywhere that can be found. */
async function askRunning(run: string, step: number): Promise<string | null> {
  const place = await temporalHere(process.cwd());
  if (!place) return null;
  const { client, close } = await connect(place);
  try {
    const handle = await findRunning(client, run);
    if (handle === null) return null;
    await requireRole('rewind', { of: 'run', run, owner: ownerOf(handle) });
    return await handle.executeUpdate<string, [number]>('rewind', { args: [step] });
  } catch (error) {
    if (!(error instanceof WorkflowUpdateFailedError)) throw error;
    throw new RatchetError('ConfigInvalid', rootMessage(error), { cause: error });
  } finally {
    await close();
  }
}

/** The run file that a run was last read from, or the file `given`. */
export async function requireSource(
  place: { readonly name: string; readonly store: string },
  given: string | undefined,
): Promise<SpecSource> {
  const { source } = await storedSpec(place);
  if (given !== undefined) return { config: given, overrides: source?.overrides ?? {} };
  if (source) return source;
  throw new RatchetError(
    'ConfigInvalid',
    `It is not written down from which file the run ${place.name} was read. Name it: --config FILE.`,
  );
}
