import { setTimeout as delay } from 'node:timers/promises';
import type { Client, WorkflowExecutionDescription } from '@temporalio/client';
import { decodeArrayFromPayloads } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import type proto from '@temporalio/proto';
import type { OpenedRun, TakenOver, TrainRunInput } from '../../activities/index.ts';
import { memoKeys, poolWorkflowPrefix } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { AskedOfRun, RunHandle } from '../../core/rl/run-state.ts';
import { beginAnew } from './begin-anew.ts';
import { endIfOther } from './end-if-other.ts';
import { takeOverEvaluations } from './take-over-evaluations.ts';
import type { PoolInput } from '../../workflows/pool.ts';
import type { ContinuedRun } from '../../workflows/run-start.ts';
import { innermostMessage } from '../temporal/innermost-message.ts';
import { askedIn, listWorkflows } from '../temporal/list-workflows.ts';

type HistoryEvent = proto.temporal.api.history.v1.IHistoryEvent;

/** Events in which a run that was opened shows it: opening is the first thing it does. */
const firstEventsMax = 200;
/** The list lags a little behind: a run that began right before the stack went down is found at a second look. */
const secondLookMs = 5_000;

interface TakeOverOptions {
  readonly client: Client;
  /** Version of this process's workflow code, as its worker writes it into histories: `workflowCodeVersion`. */
  readonly version: string;
  /** Prints a line for the user. */
  readonly say: (line: string) => void;
  /** No orchestrator with a deployment version is left: a run that is pinned to one, also to ours, waits for ever. */
  readonly isUnversioned?: boolean;
}

/**
 * Restarts open runs whose history was written by other workflow code, which ours cannot replay. Each continues from
 * its newest commit under the same workflow id, with its settings and everything requested of it; stored work of the
 * step under way is adopted. Only for a server with one orchestrator, and before that one polls; looks once more a
 * little later.
 */
export async function takeOverRuns(options: Omit<TakeOverOptions, 'isUnversioned'>): Promise<void> {
  const said = new Set<string>();
  const sayOnce = (line: string): void => {
    if (!said.has(line)) options.say(line);
    said.add(line);
  };
  const alone = { ...options, say: sayOnce, isUnversioned: true };
  await takeOverOpen(alone);
  void delay(secondLookMs, undefined, { ref: false }).then(() => takeOverOpen(alone));
}

/** The same with a single look. */
async function takeOverOpen({ client, version, say, isUnversioned = false }: TakeOverOptions): Promise<void> {
  const writtenBy = isUnversioned ? orPinned : versionOf;
  const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  try {
    for await (const { workflowId } of listWorkflows(client, query)) {
      try {
        const run = await takeOverRun({ client, version, writtenBy }, workflowId);
        if (run !== null) say(`upgrade: run ${run} continues from its newest commit under the new code`);
      } catch (error) {
        // One run must not stop the others from continuing.
        say(
          `upgrade: run ${workflowId} was begun by other code and could not be taken over: ${innermostMessage(error)}`,
        );
      }
    }
    await takeOverBeside({
      client,
      version,
      writtenBy,
      said: (what) => say(`upgrade: ${what} under the new code`),
      failed: (workflowId, reason) =>
        say(`upgrade: ${workflowId} was begun by other code and could not be taken over: ${innermostMessage(reason)}`),
    });
  } catch (error) {
    say(`upgrade: whether there are runs of other code could not be found out: ${innermostMessage(error)}`);
  }
}

interface BesideOptions {
  /** Version of this process's workflow code. */
  readonly version: string;
  readonly writtenBy: typeof versionOf;
  /** Called for each that cannot be taken over, or ended; the others still are. */
  readonly failed: (workflowId: string, reason: unknown) => void;
  /** Whether this execution is looked at; all are when missing. */
  readonly isWanted?: (execution: { readonly workflowId: string; readonly runId: string }) => boolean;
}

/** Takes over what is open beside runs: pools, evaluations, searches and sweeps; ends what generated rounds of runs. */
export async function takeOverBeside({
  client,
  said,
  ...options
}: BesideOptions & { readonly client: Client; readonly said: (what: string) => void }): Promise<void> {
  const { writtenBy: versionOf, ...others } = options;
  await endFlows(client, options);
  for (const pool of await takeOverPools(client, options)) said(`the pool ${pool} continues`);
  for (const evaluation of await takeOverEvaluations(client, { ...others, versionOf }))
    said(`${evaluation} continues with what it has finished,`);
}

/**
 * Ends the workflows of other code that generate rounds: runs that are taken over give their rounds to workflows of
 * their own code, which continue from what is stored. Lists them once, and ends exactly the executions that it saw.
 */
export async function endFlows(
  client: Client,
  { version, writtenBy, failed, isWanted = () => true }: BesideOptions,
): Promise<void> {
  const query = "WorkflowType='playRounds' AND ExecutionStatus='Running'";
  for await (const { workflowId, runId } of listWorkflows(client, query)) {
    if (!isWanted({ workflowId, runId })) continue;
    await endIfOther(client, { workflowId, runId }, { version, versionOf: writtenBy }).catch((error: unknown) =>
      failed(workflowId, error),
    );
  }
}

/**
 * Begins pools anew that were begun by other code, with their settings, which are in the memo. All else their runs and
 * GPU workers tell again by themselves.
 */
async function takeOverPools(
  client: Client,
  { version, writtenBy, failed, isWanted = () => true }: BesideOptions,
): Promise<string[]> {
  const taken: string[] = [];
  for await (const { workflowId, runId } of listWorkflows(
    client,
    "WorkflowType='pool' AND ExecutionStatus='Running'",
  )) {
    if (!isWanted({ workflowId, runId })) continue;
    try {
      const found = await client.workflow.getHandle(workflowId).describe();
      const written = writtenBy(found);
      if (written === null || written === version) continue;
      await beginPoolAgain(client, found);
      taken.push(workflowId.slice(poolWorkflowPrefix.length));
    } catch (error) {
      failed(workflowId, error);
    }
  }
  return taken;
}

async function beginPoolAgain(client: Client, found: WorkflowExecutionDescription): Promise<void> {
  const settings = found.memo?.[memoKeys.poolSettings] as PoolInput['settings'];
  const input: PoolInput = { name: found.workflowId.slice(poolWorkflowPrefix.length), ...present({ settings }) };
  await beginAnew(client, found, [input]);
}

/**
 * Why a run is taken over. `other code`: its history was written by other code than ours. `wedged`: our code fails with it,
 * whichever wrote it. `broken`: the code that wrote it fails with it, and the run says so.
 */
type TakeOverReason = 'other code' | 'wedged' | 'broken';

/**
 * The run's name if it was taken over; null if our code can continue it as it is. What generates its rounds is left:
 * `endFlows` ends it.
 */
export async function takeOverRun(
  {
    client,
    version,
    why = 'other code',
    writtenBy = versionOf,
  }: Pick<TakeOverOptions, 'client' | 'version'> & {
    readonly why?: TakeOverReason;
    readonly writtenBy?: typeof versionOf;
  },
  workflowId: string,
): Promise<string | null> {
  const found = await client.workflow.getHandle(workflowId).describe();
  const { runId, raw, memo = {} } = found;
  if (found.status.name !== 'RUNNING' || (writtenBy(found) === version && why !== 'wedged')) return null;
  const beginning = await readBeginning(client, workflowId, runId);
  if (writtenBy(found) === null) {
    // No task has completed. The input came from the user, which every version reads, or from the code that continued
    // as new.
    if (beginning.continues === null) return null;
    if (writtenBy(await client.workflow.getHandle(workflowId, beginning.continues).describe()) === version) return null;
  }
  const asked = askedSoFar(beginning.input, memo);
  const again = anew({ ...beginning, asked, why, request: `${workflowId}/${runId}` });
  await beginAnew(client, found, [again], {
    // without the server's own attributes
    typedSearchAttributes: found.typedSearchAttributes
      .getAll()
      .filter(({ key }) => !/^(BuildIds|Temporal)/.test(key.name)),
    ...timeoutsOf(raw.executionConfig),
  });
  return again.takesOver.handle?.name ?? workflowId;
}

/**
 * Version of the workflow code that wrote its newest history: the server records it with every workflow task. null
 * before the first.
 */
export function versionOf({ raw }: WorkflowExecutionDescription): string | null {
  const { mostRecentWorkerVersionStamp: stamp, versioningInfo } = raw.workflowExecutionInfo ?? {};
  return versioningInfo?.deploymentVersion?.buildId || stamp?.buildId || null;
}

/**
 * The same, when no worker has a deployment version: a run pinned to one was written by other code, whatever that was.
 */
export function orPinned(found: WorkflowExecutionDescription): string | null {
  const pinned = found.raw.workflowExecutionInfo?.versioningInfo?.deploymentVersion?.buildId;
  return pinned ? `pinned to ${pinned}` : versionOf(found);
}

function timeoutsOf(config: proto.temporal.api.workflow.v1.IWorkflowExecutionConfig | null | undefined) {
  const task = optionalTsToMs(config?.defaultWorkflowTaskTimeout);
  const execution = optionalTsToMs(config?.workflowExecutionTimeout);
  return {
    ...present({ workflowTaskTimeout: task || undefined, workflowExecutionTimeout: execution || undefined }),
  };
}

/** `Input` is exactly what the client sent. It is not validated until the workflow runs. */
export interface Beginning<Input = TrainRunInput | ContinuedRun | null | undefined> {
  readonly input: Input;
  /** Result of opening the run; null while that is under way. */
  readonly opened: OpenedRun | null;
  /** The execution that continued as this one. */
  readonly continues: string | null;
}

/** Input for the same run again, with its commits and everything requested of it. */
function anew(
  run: Pick<Beginning, 'input' | 'opened'> & {
    readonly asked: AskedOfRun | null;
    readonly why: TakeOverReason;
    readonly request: string;
  },
): Exclude<TrainRunInput, string> & { readonly takesOver: TakenOver } {
  const { input, opened, asked, request } = run;
  const told = run.why === 'broken' ? { isBroken: true } : {};
  if (isContinued(input)) {
    const { opened: before, typed } = input.continued;
    return { ...typed, takesOver: { handle: before.handle, asked, request, ...told } };
  }
  const typed = (typeof input === 'object' ? input : { config: input }) as Exclude<TrainRunInput, string>;
  const { takesOver: before = { handle: null, asked: null, request } } = typed ?? {};
  // A run that another version took over and did not open yet is passed on unchanged.
  if (opened === null) return { ...typed, takesOver: before };
  const { isBroken: _, ...rest } = before;
  return { ...typed, takesOver: { ...rest, handle: opened.handle, asked, ...told } };
}

/** Requests made of an execution: from its memo, or from its input if it has no memo yet. null without any. */
function askedSoFar(input: Beginning['input'], memo: Readonly<Record<string, unknown>> = {}): AskedOfRun | null {
  const noted = askedIn(memo);
  if (noted) return noted;
  if (!isContinued(input)) return (typeof input === 'object' ? input?.takesOver?.asked : null) ?? null;
  const { control, state, rewind = null } = input.continued;
  const { pausedBecause, isPausedByPerson } = control;
  return { pausedBecause, isPausedByPerson, overrides: state.overrides, rewind };
}

/**
 * State that an open run hands to the execution that replaces it, which reads its settings anew. A pause that no user
 * asked for ends here: the restart means that someone has looked.
 */
export async function handedOver(client: Client, workflowId: string): Promise<TakenOver> {
  const { runId, memo } = await client.workflow.getHandle(workflowId).describe();
  const { input } = await readBeginning(client, workflowId, runId);
  const asked = askedSoFar(input, memo);
  const request = `${workflowId}/${runId}/again`;
  if (asked === null || asked.isPausedByPerson) return { handle: null, asked, request };
  return { handle: null, asked: { ...asked, pausedBecause: null }, request };
}

/** Input of an execution, and the result of opening the run. */
export async function readBeginning<Input = Beginning['input']>(
  client: Client,
  workflowId: string,
  runId: string,
): Promise<Beginning<Input>> {
  const converter = client.options.loadedDataConverter;
  const { history } = await client.workflowService.getWorkflowExecutionHistory({
    namespace: client.options.namespace,
    execution: { workflowId, runId },
    maximumPageSize: firstEventsMax,
  });
  const events = history?.events ?? [];
  const payloads = events[0]?.workflowExecutionStartedEventAttributes?.input?.payloads ?? [];
  const [input] = (await decodeArrayFromPayloads(converter, payloads)) as [Input];
  const result = resultOfOpening(events);
  const [opened = null] = result ? ((await decodeArrayFromPayloads(converter, result)) as [OpenedRun]) : [];
  const continues = events[0]?.workflowExecutionStartedEventAttributes?.continuedExecutionRunId || null;
  return { input, opened, continues };
}

/** The run that an execution of `trainRun` works on; null while it is being opened. */
export async function openedRun(client: Client, workflowId: string, runId: string): Promise<RunHandle | null> {
  const { input, opened } = await readBeginning(client, workflowId, runId);
  return isContinued(input) ? input.continued.opened.handle : (opened?.handle ?? null);
}

function resultOfOpening(events: readonly HistoryEvent[]) {
  const asked = events.find((event) => event.activityTaskScheduledEventAttributes?.activityType?.name === 'openRun');
  const done = events.find(
    ({ activityTaskCompletedEventAttributes: completed }) =>
      asked && completed && String(completed.scheduledEventId) === String(asked.eventId),
  );
  return done?.activityTaskCompletedEventAttributes?.result?.payloads ?? null;
}

export function isContinued(input: Beginning['input']): input is ContinuedRun {
  return typeof input === 'object' && input !== null && 'continued' in input;
}
