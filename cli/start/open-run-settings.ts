import type { Client } from '@temporalio/client';
import type { TrainRunInput } from '../../activities/index.ts';
import { present } from '../../core/present.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { RunSpec } from '../../config/run-spec.ts';
import { memoKeys } from '../../core/names.ts';
import type { AskedOfRun, Overrides } from '../../core/rl/run-state.ts';
import { overridesThatStay } from '../../core/rl/live-settings.ts';
import { specOf } from '../../runs/run-access.ts';
import { type Beginning, isContinued, readBeginning } from '../../workers/stack/take-over.ts';

/** Settings of a run that is under way. */
export interface OpenRunSettings {
  /** The spec stored when the run was opened; null while it is being opened, or if its store cannot be read here. */
  readonly stored: RunSpec | null;
  /** The run file that was sent along, parsed by today's code; null if none was sent. */
  readonly sent: () => Promise<RunSpec | null>;
  /** Values that `ratchet set` gave while the run was under way. */
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

/** Null if the store is not reachable. The other sources of settings are used then. */
async function storedOf({ input, opened }: Beginning): Promise<RunSpec | null> {
  const handle = isContinued(input) ? input.continued.opened.handle : takenOver(input)?.handle;
  // The workflow's history holds the result of opening, in any version's form.
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

/** Also null if the file can no longer be read, because a model or an environment that it names is gone. */
async function sentWith(
  { config, over, dialect, overrides, sent }: Typed,
  run: string,
  projectFolder: string,
): Promise<RunSpec | null> {
  if (!sent) return null;
  const load = {
    projectFolder,
    run,
    sent: { ...sent, beside: {} }, // files beside the run file may have changed since
    ...present({ over, dialect, overrides }),
  };
  return loadRunConfig(config, load).then(
    ({ spec }) => spec,
    () => null,
  );
}
