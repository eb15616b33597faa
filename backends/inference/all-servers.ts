import { RatchetError } from '../../core/errors.ts';
import type { PoolMember } from './pool-member.ts';
import type { PoolCall, ServerPool } from './pool.ts';
import type { CompareRequest, HoldOutcome, ScoreRequest, ServerDrift } from './types.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

/** Servers and the versions they hold: shared by every adapter with a pool. */

/** Sends a request to a server that should hold a version. One that does not loads it, and is asked again. */
export async function askFor<T>(
  pool: ServerPool,
  policy: ServedPolicy,
  call: PoolCall,
  ask: (member: PoolMember, model: string) => Promise<T>,
): Promise<T> {
  const { avoid = [] } = policy;
  if (avoid.length > 0 && pool.members.length > 0 && pool.members.every(({ server }) => avoid.includes(server.root))) {
    throw new RatchetError(
      'InferenceUnavailable',
      `No inference server may be asked for ${policy.name}: all that there are were quarantined by its canary (${avoid.join(', ')}).`,
    );
  }
  const ofRun = { ...call, of: runOf(policy) };
  return pool.use(avoid.length === 0 || call.isOnlyThere ? ofRun : { ...ofRun, avoid }, async (member) => {
    const { root, address } = member.server;
    if (address.model !== null) return ask(member, address.model);
    if (member.hasMissed(policy)) await member.bring(policy);
    try {
      return await ask(member, await member.server.modelFor(policy));
    } catch (error) {
      if (!(error instanceof RatchetError) || error.code !== 'VersionNotHeld') throw error;
      await member.bring(policy);
      throw new RatchetError('VersionNotHeld', `${root} did not hold ${policy.name}; it does now.`, { cause: error });
    }
  });
}

/** The run of a version, which is served as `RUN:LINEAGE:STEP`. */
function runOf({ name }: ServedPolicy): string {
  return name.split(':', 1)[0]!;
}

/**
 * Loads a version into every available server; the others catch up when they are back. A failing one is quarantined,
 * unless all fail: then the first one's failure is thrown.
 */
export async function bringAll(pool: ServerPool, policy: ServedPolicy): Promise<void> {
  const members = membersHere(pool);
  if (members.length === 0) return pool.use({}, (member) => member.bring(policy));
  const outcomes = await Promise.allSettled(
    members.map((member) => pool.use({ to: member, isOnlyThere: true }, () => member.bring(policy))),
  );
  const failures = outcomes.flatMap((outcome, i) =>
    outcome.status === 'rejected' ? [{ member: members[i]!, reason: outcome.reason as unknown }] : [],
  );
  if (failures.length === members.length) throw failures[0]!.reason;
  for (const { member, reason } of failures)
    member.quarantine(reason instanceof Error ? reason.message : String(reason));
}

/**
 * Asks every available server to keep a version, after loading it if needed. Failures are ignored while one succeeds;
 * throws if all fail.
 */
export async function holdAll(
  pool: ServerPool,
  policy: ServedPolicy,
  holder: string,
  seconds: number,
): Promise<HoldOutcome> {
  const members = membersHere(pool);
  const outcomes = await Promise.allSettled(members.map((member) => hold(member, policy, holder, seconds)));
  const said = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  if (said.length === 0 && outcomes.length > 0) throw (outcomes[0] as PromiseRejectedResult).reason;
  return said.find((one) => one === 'held') ?? said.find((one) => one === 'full') ?? 'single';
}

export async function releaseAll(pool: ServerPool, { name }: ServedPolicy, holder: string): Promise<void> {
  await Promise.allSettled(membersHere(pool).map(({ server }) => server.release(name, holder)));
}

/** Throws if none of the available servers can be told. */
export async function leaveAll(pool: ServerPool, run: string): Promise<void> {
  const outcomes = await Promise.allSettled(membersHere(pool).map(({ server }) => server.leave(run)));
  const failed = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failed && outcomes.every(({ status }) => status === 'rejected')) throw failed.reason;
}

async function hold(member: PoolMember, policy: ServedPolicy, holder: string, seconds: number): Promise<HoldOutcome> {
  const { server } = member;
  const first = await server.hold(policy.name, holder, seconds);
  if (first !== 'gone') return first;
  await member.bring(policy);
  const second = await server.hold(policy.name, holder, seconds);
  return second === 'gone' ? 'full' : second;
}

function membersHere({ members }: ServerPool): readonly PoolMember[] {
  const here = members.filter(({ away }) => away === null);
  return here.length > 0 ? here : members;
}

type Ask = (to: PoolMember | null) => Promise<readonly number[]>;

/** The logprobs of a canary at every available server; returns those that deviate most from the expected ones. */
export async function scoreAll(pool: ServerPool, { expected }: ScoreRequest, ask: Ask): Promise<readonly number[]> {
  const scores = (await scoreEach(pool, ask)).map(({ logprobs }) => logprobs);
  if (expected === undefined) return scores[0]!;
  return scores.toSorted((a, b) => meanDifference(b, expected) - meanDifference(a, expected))[0]!;
}

/** The deviation of every available server. One that deviates too much is given the weights again. */
export async function compareAll(pool: ServerPool, request: CompareRequest, ask: Ask): Promise<ServerDrift[]> {
  const { expected, threshold, policy } = request;
  const scored = await scoreEach(pool, ask);
  return Promise.all(
    scored.map(async ({ member, logprobs }): Promise<ServerDrift> => {
      const difference = meanDifference(logprobs, expected);
      const server = member?.server.root ?? 'the servers';
      if (difference <= threshold || member === null) return { server, difference };
      await member.server.reload(policy);
      const again = await ask(member);
      return { server, difference: meanDifference(again, expected), isReloaded: true };
    }),
  );
}

async function scoreEach(
  pool: ServerPool,
  ask: Ask,
): Promise<{ readonly member: PoolMember | null; readonly logprobs: readonly number[] }[]> {
  const here = pool.members.filter(({ away }) => away === null);
  if (here.length === 0) return [{ member: null, logprobs: await ask(null) }];
  const outcomes = await Promise.allSettled(here.map(ask));
  const scores = outcomes.flatMap((outcome, i) =>
    outcome.status === 'fulfilled' ? [{ member: here[i]!, logprobs: outcome.value }] : [],
  );
  if (scores.length === 0) throw (outcomes[0] as PromiseRejectedResult).reason;
  return scores;
}

/** Mean of |Δ|. */
export function meanDifference(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, one, i) => sum + Math.abs(one - b[i]!), 0) / a.length;
}
