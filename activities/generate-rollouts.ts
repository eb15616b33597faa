import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { layout } from '../runs/layout.ts';
import { chunkName, groupsOfChunk, type RoundChunk, rolloutsAtOnce, tasksPerMinute } from '../core/rl/chunks.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { GroupLease, Rollout, UnfinishedRollout } from '../core/rl/rollout.ts';
import type { LeasedGroups, ObjectRef, Prompts, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { environments as allEnvironments, type Environments } from '../backends/environments/index.ts';
import { failedRollout } from '../backends/environments/score.ts';
import type { RolloutPlace } from '../backends/environments/types.ts';
import type { Inference, ServedPolicy } from '../backends/inference/index.ts';
import type { Store } from '../backends/store/index.ts';
import { countRows, decodeJson, encodeJson, encodeRows, putRows } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { eachInTurn } from '../backends/rollouts/each-in-turn.ts';
import { isShutdown, lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { Pace } from '../backends/rollouts/pace.ts';
import { playRollout } from '../backends/rollouts/play-rollout.ts';
import { textsOfPrompts } from '../runs/prompts-in-use.ts';
import { RolloutJournal } from '../runs/rollout-journal.ts';
import { readJson, servedPolicy, specOf, storeOf } from '../runs/run-access.ts';
import { samplePlace, samplePolicy, turnSeed } from '../backends/rollouts/sample-policy.ts';
import { openSpeaker, type Speak, type TeacherDependencies } from '../backends/rollouts/teacher.ts';
import { GenerationSitting, type NotReady, type SittingProgress } from './around/generation-sitting.ts';
import { lostIn } from './around/work-under-way.ts';
import { type OpenTokenizer, policyTokenizer } from '../runs/stored-template.ts';

export interface GenerateInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly chunk: RoundChunk;
  /** From 1: what one sitting leaves unfinished the next goes on with. */
  readonly sitting?: number;
  /** What is unfinished at this sitting's deadline is given up as `timeout`. */
  readonly isLast?: boolean;
}

/** Why a sitting ended with something unfinished. */
export type SittingEnd = 'deadline' | 'cancelled' | 'shutdown';

export interface GeneratedChunk {
  /** → {@link Rollout} */
  readonly finished: ObjectRef;
  /** → {@link UnfinishedRollout}; absent when all are finished. */
  readonly unfinished?: ObjectRef;
  readonly endedBy?: SittingEnd;
  /** The inference server answered nothing at the end of the sitting. */
  readonly notReady?: NotReady;
  readonly rollouts: number;
  /** Of those, how many lay in the store already and cost nothing. */
  readonly adopted: number;
  readonly seconds: number;
  /** By attempts before the one that gave this, and by a shutdown; absent when nothing was. */
  readonly lost?: LostWork;
}

export interface GenerateDependencies extends Pick<TeacherDependencies, 'teacher'> {
  readonly inference: (spec: RunSpec) => Inference;
  readonly tokenizer: OpenTokenizer;
  readonly environments?: Environments;
}

/** How often finished rollouts and turns are stored while others of their chunk still run. */
const partIntervalMs = 500;

export const createGenerateRollouts =
  (dependencies: GenerateDependencies) =>
  /**
   * Plays a chunk of the round's groups, until all are done, the deadline is reached, or it is told to stop; then it names
   * what is finished and what is not. A retry, like the next sitting, finds finished rollouts and turns in the store and
   * plays only what is missing, with the same random numbers.
   */
  async (input: GenerateInput): Promise<GeneratedChunk> => {
    const sitting = new GenerationSitting(lastProgress<SittingProgress>());
    return withHeartbeat(
      (cancelled, say) => generate(dependencies, input, sitting, { cancelled, say }),
      () => sitting.progress(),
    );
  };

async function generate(
  dependencies: GenerateDependencies,
  input: GenerateInput,
  sitting: GenerationSitting,
  { cancelled, say }: { readonly cancelled: AbortSignal; readonly say: () => void },
): Promise<GeneratedChunk> {
  const { run, round, chunk } = input;
  const store = storeOf(run);
  const prefix = layout.round(run.lineage, round.step, round.first, round.last) + chunkName(chunk);
  const ended = `${prefix}/sitting_${input.sitting ?? 1}`;
  const whole = await store.read(`${prefix}.jsonl`);
  if (whole) {
    sitting.work.goOnFrom(null);
    return generated(`${prefix}.jsonl`, whole, null, sitting);
  }
  const left = await store.read(`${ended}.json`);
  if (left) return leftBefore(left, `${ended}.json`, sitting);

  const journal = await RolloutJournal.open(store, `${prefix}/`, round.leases.sha256);
  journal.keep();
  sitting.work.goOnFrom(journal.size());
  const { leases, policy, prompts } = await readJson<LeasedGroups>(run, round.leases);
  const spec = await specOf(run);
  const { signal, deadline } = sitting.until(cancelled, spec.generationTimeoutS * 1000);
  const players = await openPlayers(dependencies, run, await servedPolicy(run, policy), {
    journal,
    sitting,
    signal,
    prompts,
  });
  const wanted = groupsOfChunk(leases, chunk).flatMap((lease) =>
    Array.from({ length: spec.rolloutsPerExample }, (_, index) => placeIn(lease, index)),
  );
  const missing = wanted.filter(({ place }) => !journal.has(place));
  const brokenOff = new AbortController();
  setMaxListeners(0, brokenOff.signal); // whoever waits for its group listens
  const together = groupsPlayed(missing, brokenOff.signal);
  const adopted = wanted.length - missing.length;

  const flushing = setInterval(() => void journal.flush().catch(() => undefined), partIntervalMs); // close() tries again
  try {
    // Never fewer than a group: an environment may score its rollouts in place, when the last of them is there.
    const atOnce = Math.max(rolloutsAtOnce(chunk, spec), spec.rolloutsPerExample);
    const pace = paceOf(chunk, spec);
    const begun = new Map<number, Promise<void> | null>();
    const playing = eachInTurn(missing, { atOnce, stop: signal, brokenOff }, async ({ lease, place }) => {
      // An example is begun once, however many of its rollouts are.
      const turn = begun.has(lease.ordinal) ? begun.get(lease.ordinal) : pace.next(signal);
      begun.set(lease.ordinal, turn ?? null);
      if (turn) await turn;
      sitting.work.begin(pieceOf(place));
      journal.add(await players.play(lease, place, together(place)));
      sitting.work.finish(pieceOf(place));
    });
    say(); // a worker may die before the next heartbeat
    await playing;
  } finally {
    clearInterval(flushing);
    sitting.end();
    await journal.close(missing.length);
  }
  const unfinished = wanted.filter(({ place }) => !journal.has(place)).map(({ place }) => place);
  if (unfinished.length > 0) {
    const endedBy = endOf(cancelled, deadline);
    const isGivenUp = endedBy === 'deadline' && input.isLast === true && sitting.notReady === null;
    if (!isGivenUp) {
      const left = await leaveUnfinished(store, ended, { journal, unfinished, endedBy, adopted, sitting });
      journal.forget();
      return left;
    }
    for (const place of unfinished) journal.add(timedOut(place, journal, spec));
  }
  // An attempt that was given up may still be at work: whoever is first decides, and both return the same.
  const { stored, bytes } = await store.putIfAbsent(`${prefix}.jsonl`, encodeRows(journal.inOrder()));
  journal.forget();
  return generated(`${prefix}.jsonl`, bytes, stored ? adopted : null, sitting);
}

function paceOf(chunk: RoundChunk, spec: RunSpec): Pace {
  const perMinute = tasksPerMinute(chunk, spec);
  return new Pace(perMinute === null ? 0 : 60_000 / perMinute);
}

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;

function placeIn(lease: GroupLease, index: number): { readonly lease: GroupLease; readonly place: Place } {
  return { lease, place: { group: lease.ordinal, index, exampleId: lease.exampleId } };
}

function pieceOf({ group, index }: Place): string {
  return `${group}/${index}`;
}

type Together = Pick<RolloutPlace, 'group' | 'size' | 'brokenOff'>;

/** Which of what is to be played belongs together; named so that two attempts in one process share nothing. */
function groupsPlayed(
  missing: readonly { readonly place: Place }[],
  brokenOff: AbortSignal,
): (place: Place) => Together {
  const attempt = randomUUID();
  const sizes = new Map<number, number>();
  for (const { place } of missing) sizes.set(place.group, (sizes.get(place.group) ?? 0) + 1);
  return ({ group }) => ({ group: `${attempt}/${group}`, size: sizes.get(group) ?? 0, brokenOff });
}

function endOf(cancelled: AbortSignal, deadline: AbortSignal): SittingEnd {
  if (cancelled.aborted) return isShutdown(cancelled) ? 'shutdown' : 'cancelled';
  if (!deadline.aborted) throw new Error('a chunk ended early, and nobody asked it to');
  return 'deadline';
}

function timedOut(place: Place, journal: RolloutJournal, { generationTimeoutS }: RunSpec): Rollout {
  const turns = journal.turnsOf(place);
  const error = `Not finished when generation was given up; a sitting has generation_timeout = ${generationTimeoutS} s. It had ${turns.length} finished turns.`;
  return failedRollout({ ...place, turns }, 'timeout', error);
}

/** Names what there is and what there is not. A retry of this sitting says the same. */
async function leaveUnfinished(
  store: Store,
  prefix: string,
  left: {
    readonly journal: RolloutJournal;
    readonly unfinished: readonly Place[];
    readonly endedBy: SittingEnd;
    readonly adopted: number;
    readonly sitting: GenerationSitting;
  },
): Promise<GeneratedChunk> {
  const { journal, sitting } = left;
  const finished = journal.inOrder();
  const unfinished = left.unfinished.map(({ group, index }): UnfinishedRollout => {
    return { group, index, turns: journal.turnsOf({ group, index }).length };
  });
  // By content: two attempts that overlap may have come to different ends.
  const nameOf = (kind: string, rows: readonly unknown[]) =>
    `${prefix}.${kind}.${sha256(encodeRows(rows)).slice(0, 8)}.jsonl`;
  const result: GeneratedChunk = {
    finished: await putRows(store, nameOf('finished', finished), finished),
    unfinished: await putRows(store, nameOf('unfinished', unfinished), unfinished),
    endedBy: left.endedBy,
    ...(sitting.notReady === null ? {} : { notReady: sitting.notReady }),
    rollouts: finished.length,
    adopted: left.adopted,
    seconds: sitting.seconds(),
    ...lostIn(left.endedBy === 'shutdown' ? sitting.work.ifItStopsHere(journal.size()) : sitting.work.lost),
  };
  const { bytes } = await store.putIfAbsent(`${prefix}.json`, encodeJson(result));
  return decodeJson<GeneratedChunk>(bytes, `${prefix}.json`);
}

/** What an attempt before stored and could not tell any more. What it had lost is in what was lost since. */
function leftBefore(bytes: Uint8Array, key: string, sitting: GenerationSitting): GeneratedChunk {
  sitting.work.goOnFrom(null);
  return { ...decodeJson<GeneratedChunk>(bytes, key), ...lostIn(sitting.work.lost) };
}

/** What lies in the store of a chunk; `adopted` null = all of it was there. */
function generated(key: string, bytes: Uint8Array, adopted: number | null, sitting: GenerationSitting): GeneratedChunk {
  const rollouts = countRows(bytes);
  return {
    finished: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: rollouts },
    rollouts,
    adopted: adopted ?? rollouts,
    seconds: sitting.seconds(),
    ...lostIn(sitting.work.lost),
  };
}

/** Everything a rollout needs: its environment, the tokenizer of the policy, and a server to sample from. */
async function openPlayers(
  dependencies: GenerateDependencies,
  run: RunHandle,
  served: ServedPolicy,
  around: {
    readonly journal: RolloutJournal;
    readonly sitting: GenerationSitting;
    readonly signal: AbortSignal;
    readonly prompts: Prompts | undefined;
  },
): Promise<{ play(lease: GroupLease, place: Place, together: Together): Promise<Rollout> }> {
  const { journal, sitting, signal } = around;
  const spec = await specOf(run);
  const inference = sitting.watch(dependencies.inference(spec));
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  const played = { tokenizer, folder: served.folder, at: served.version.step };
  const isTaught = spec.teacher?.role === 'samples';
  const say = isTaught ? await openSpeaker(dependencies, spec, played) : null;
  const speak = say && { speak: ((...turn) => sitting.look(() => say(...turn))) satisfies Speak };
  const systemPrompts = await textsOfPrompts(run, around.prompts);
  const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
  const { environments = allEnvironments } = dependencies;
  return {
    async play(lease, place, together) {
      const { group, index } = place;
      const systemPrompt = systemPrompts.get(lease.environment);
      const entry = entries.get(lease.environment)!;
      const own = entry.sampling ?? spec.sampling;
      // The prompt is rendered for the policy; how the teacher thinks is told the teacher.
      const { templateArguments } = own;
      const sampling = isTaught && spec.teacher ? { ...spec.teacher.sampling, templateArguments } : own;
      const rollout = await playRollout({
        environments,
        entry,
        dataset: 'dataset',
        place,
        together,
        systemPrompt,
        signal,
        openPolicy({ isDeterministic, isSingleTurn = false }) {
          sitting.work.begin(pieceOf(place));
          const onRecord = isDeterministic && !isSingleTurn;
          return samplePolicy(
            {
              inference,
              tokenizer,
              served,
              sampling,
              signal,
              ...speak,
              promptTokensMax: spec.maxPromptTokens,
              place: samplePlace([run.name, run.lineage, group], index),
              ...(onRecord ? { recorded: journal.turnsOf(place) } : {}),
              onTurn(turn, position) {
                sitting.work.sampled(pieceOf(place), turn.tokenIds.length);
                if (onRecord && !signal.aborted) journal.addTurn({ group, index, turn: position, ...turn });
              },
            },
            (turn) => turnSeed(sampling.seed ?? spec.seed, run.lineage, group, index, turn),
          );
        },
      });
      return systemPrompt === undefined ? rollout : { ...rollout, prompt: sha256(Buffer.from(systemPrompt)) };
    },
  };
}
