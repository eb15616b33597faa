import { ActivityFailure } from '@temporalio/workflow';
import type { BroadcastResult } from '../../activities/broadcast-weights.ts';
import type { LeaseInput } from '../../activities/index.ts';
import { inferenceTraits } from '../../core/kinds/inference.ts';
import { canaryDifferenceMaxInFloat32 } from '../../core/limits.ts';
import { namedServers, versionName } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { awaitedLater } from '../beside/beside.ts';
import { rootCause } from '../beside/root-cause.ts';
import { lookup, orchestratorFor } from '../options.ts';
import type { RunContext } from '../run-context.ts';
import type { Head } from './head.ts';
import type { Publishing } from './publishing.ts';
import type { ServingSchedule } from './serving-schedule.ts';

export interface ServedOptions {
  readonly head: Head;
  readonly publishing: Publishing;
  readonly serving: ServingSchedule;
  /** Whether servers may get other weights while rollouts are generated. */
  readonly changesInFlight: () => boolean;
  /** See {@link Rollouts.leaseWith}. */
  readonly leaseWith: (
    policy: PolicyVersion,
    send: (lease?: LeaseInput) => Promise<BroadcastResult>,
  ) => Promise<BroadcastResult>;
}

/** Sends committed versions to the inference servers, one after another, and acts on their canaries. */
export class ServedWeights {
  readonly #context: RunContext;
  readonly #options: ServedOptions;
  readonly #servers: string;
  #newest: BroadcastResult | null = null;
  #served: PolicyVersion | null = null;
  #ready: Promise<void> = Promise.resolve();
  /** Versions that the servers were asked to hold and do not hold yet. */
  #underWay = 0;

  constructor(context: RunContext, options: ServedOptions) {
    this.#context = context;
    this.#options = options;
    this.#servers = namedServers(context.spec.inference) ?? 'the policy servers';
  }

  /** The newest version that the servers hold; null before there is one. */
  get served(): PolicyVersion | null {
    return this.#served;
  }

  /** Whether they sample from one version at a time. */
  get holdsOne(): boolean {
    return this.#newest?.holdsOne === true;
  }

  /** Resolves when the servers hold the version that they were asked to hold last. */
  get ready(): Promise<void> {
    return this.#ready;
  }

  /** Whether {@link ready} has resolved. */
  get isReady(): boolean {
    return this.#underWay === 0;
  }

  /** Brings the servers to a stored version. */
  begin(policy: PolicyVersion): void {
    this.#awaits(this.#bring(policy));
  }

  /** Brings the servers to a committed version, once it is in the store; to one after another. */
  serve(policy: PolicyVersion, optimizer: ObjectRef | null, isPublished: boolean): void {
    const { head, publishing } = this.#options;
    const before = awaitedLater(Promise.all([this.#ready, publishing.allBefore()]));
    const stored = isPublished ? Promise.resolve(policy) : publishing.publish(policy, optimizer);
    this.#awaits(
      stored.then(async (version) => {
        head.replace(policy, version);
        await before;
        await this.#bring(version);
      }),
    );
  }

  /** The run has ended. Servers that cannot be told forget its versions when they need the room. */
  async leave(): Promise<void> {
    const { run, spec, control } = this.#context;
    if (!inferenceTraits(spec.inference).keepsVersions) return;
    try {
      await control.waitFor('the servers to unload the versions of the run', lookup.leaveServers({ run }));
    } catch (error) {
      if (!(error instanceof ActivityFailure)) throw error;
      const { step } = this.#options.head;
      control.emit('warning', step, `versions of this run stay at ${this.#servers}: ${rootCause(error).message}`);
    }
  }

  #awaits(bringing: Promise<void>): void {
    this.#underWay += 1;
    this.#ready = awaitedLater(bringing.finally(() => (this.#underWay -= 1)));
  }

  /** Figures of the newest broadcast, for the metrics of the step after it; none before the first canary. */
  figures(): Record<string, number> {
    const { canaryDifference = null, quarantined = [] } = this.#newest ?? {};
    if (canaryDifference === null) return {};
    return { 'inference/canary_difference': canaryDifference, 'inference/servers_quarantined': quarantined.length };
  }

  /**
   * Brings the servers to a version. Servers that sample from other weights get no requests for it; if all do, the run
   * pauses, and they are tried again on resume.
   */
  async #bring(policy: PolicyVersion): Promise<void> {
    const { control, spec } = this.#context;
    if (spec.data && spec.eval === null) return; // no rollout or evaluation samples from it
    for (;;) {
      const result = await this.#broadcast(policy);
      this.#newest = result;
      this.#served = policy;
      this.#emit(policy, result);
      if (!isHopeless(result)) return;
      control.pause(this.#why(policy, result));
      await control.untilResumed(); // sampling stays paused until then
    }
  }

  #broadcast(policy: PolicyVersion): Promise<BroadcastResult> {
    const { run, spec, control } = this.#context;
    const { serving, changesInFlight, leaseWith } = this.#options;
    const summary = `${versionName(policy)} to ${this.#servers}`;
    const orchestrator = orchestratorFor(spec);
    const inPlay = changesInFlight() ? { isForThoseInPlay: true } : {};
    const send = (lease?: LeaseInput) =>
      orchestrator.broadcastWeights.executeWithOptions({ summary }, [
        { run, policy, ...inPlay, ...present({ lease }) },
      ]);
    // Where servers sample from one version, the round under way has it to its end: else they are loaded back and forth. A few kinds
    // continue with other weights in the middle of a turn.
    const isInPlace =
      spec.inflightUpdates === 'token' && inferenceTraits(spec.inference).changesInTurn && changesInFlight();
    const holdOne = this.holdsOne && !isInPlace;
    const what = `broadcast ${summary}`;
    if (holdOne)
      return control.waitFor(
        what,
        serving.changing(() => send()),
      );
    let isLetIn = false;
    const sending = serving.shared(() => {
      isLetIn = true;
      return leaseWith(policy, send);
    });
    return control.waitFor(() => (isLetIn ? what : serving.heldUp(what)), sending);
  }

  #emit(
    policy: PolicyVersion,
    { quarantined = [], reloaded = [], threshold, isNoneLeft, unreadable }: BroadcastResult,
  ): void {
    const { control } = this.#context;
    const version = versionName(policy);
    if (unreadable !== undefined) {
      control.emit('warning', policy.step, `canary: ${this.#servers} were not compared for ${version}: ${unreadable}`);
    }
    for (const { server, difference } of reloaded) {
      control.emit(
        'warning',
        policy.step,
        `canary: ${server} sampled from other weights than ${version}; given them again it agrees (${difference.toExponential(1)})`,
      );
    }
    control.progress.quarantinedServers = quarantined.map(({ server }) => server);
    if (isNoneLeft) return;
    for (const { server, difference } of quarantined) {
      control.emit(
        'warning',
        policy.step,
        `canary: ${server} is quarantined: its logprobs of ${version} are ${difference.toExponential(1)} off the trainer's, expected ${threshold} at most; the others continue`,
        { server, difference },
      );
    }
  }

  #why(policy: PolicyVersion, { canaryDifference, threshold = canaryDifferenceMaxInFloat32 }: BroadcastResult): string {
    return `canary: the logprobs of ${versionName(policy)} at ${this.#servers} are ${(canaryDifference ?? NaN).toExponential(1)} off the trainer's, expected ${threshold} at most. It samples from other weights than are trained: restart it, or look at its log; then resume, and it is asked again. Where that is the precision of its arithmetic, [inference] canary_threshold says what may be.`;
  }
}

/** Also for histories from before each server had a verdict, with one for all of them. */
function isHopeless({ canaryDifference, threshold, isNoneLeft }: BroadcastResult): boolean {
  if (threshold !== undefined) return isNoneLeft === true;
  return canaryDifference !== null && !(canaryDifference <= canaryDifferenceMaxInFloat32);
}
