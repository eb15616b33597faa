import type { Client } from '@temporalio/client';
import type { TrainRunInput } from '../activities/index.ts';
import { loadRunConfig } from '../backends/configs/load-run-config.ts';
import { RunSpec } from '../config/run-spec.ts';
import { memoKeys } from '../core/names.ts';
import type { AskedOfRun, Overrides } from '../core/rl/run-state.ts';
import { overridesThatStay } from '../core/rl/live-settings.ts';
import { specOf } from '../runs/run-access.ts';
import { type Beginning, isContinued, readBeginning } from '../workers/take-over.ts';

/** The settings that a run under way goes on with. */
export interface OpenRunSettings {
  /** As they were stored when the run was opened; null while it is being opened, and where its store cannot be read from here. */
  readonly stored: RunSpec | null;
  /** Its run file as it was sent along, read by the code of today; null where none was sent. */
  readonly sent: () => Promise<RunSpec | null>;
  /** What was set while it ran. */
  readonly overrides: Overrides;
}

export async function settingsOfOpenRun(
  client: Client,
  {
    workflowId,
    run,
    projectFolder,
  }: { readonly workflowId: string; readonly run: string; readonly projectFolder: string },
): Promise<OpenRunSettings> {
  const { runId, memo } = await client.workflow.getHandle(workflowId).describe();
  const beginning = await readBeginning(client, workflowId, runId);
  const asked = memo?.[memoKeys.asked] as AskedOfRun | undefined;
  return {
    stored: await storedOf(beginning),
    sent: () => sentWith(typedOf(beginning), run, projectFolder),
    overrides: asked?.overrides ?? overridesAtFirst(beginning),
  };
}

/** Null where the store is not reached: the other sources of the settings do then. */
async function storedOf({ input, opened }: Beginning): Promise<RunSpec | null> {
  const handle = isContinued(input) ? input.continued.opened.handle : takenOver(input)?.handle;
  // What opening gave is in the history, however old its form is.
  const spec: unknown = opened?.spec ?? (handle ? await specOf(handle).catch(() => null) : null);
  const read = RunSpec.safeParse(spec);
  return read.success ? read.data : null;
}

function overridesAtFirst({ input, opened }: Beginning): Overrides {
  if (isContinued(input)) return input.continued.state.overrides;
  const asked = takenOver(input)?.asked;
  return asked?.overrides ?? overridesThatStay(opened?.head?.commit.state.overrides ?? {});
}

type Typed = Omit<Exclude<TrainRunInput, string>, 'rewind' | 'takesOver'>;

function typedOf({ input }: Beginning): Typed {
  if (isContinued(input)) return input.continued.typed;
  return typeof input === 'object' && input !== null ? input : { config: input ?? '' };
}

function takenOver(input: Exclude<Beginning['input'], { readonly continued: unknown }>) {
  return typeof input === 'object' ? input?.takesOver : undefined;
}

/** Null also where it cannot be read any more: a model or an environment that it names is gone. */
async function sentWith(
  { config, over, dialect, overrides, sent }: Typed,
  run: string,
  projectFolder: string,
): Promise<RunSpec | null> {
  if (!sent) return null;
  const load = {
    projectFolder,
    run,
    sent: { ...sent, beside: {} }, // files beside it may have been changed since
    ...(over ? { over } : {}),
    ...(dialect === undefined ? {} : { dialect }),
    ...(overrides ? { overrides } : {}),
  };
  return loadRunConfig(config, load).then(
    ({ spec }) => spec,
    () => null,
  );
}
