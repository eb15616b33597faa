import { generateChunks, samplingRoundsMax } from '../core/limits.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import { countGroups, selectGroups } from '../core/rl/selection.ts';
import type { EndedRanges } from '../core/rl/ledger.ts';
import type { KeptGroups, ObjectRef, PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import type { LeaseInput } from '../activities/index.ts';
import { local, rollouts } from './activity-options.ts';
import type { RunDesk } from './run-desk.ts';

/** What a step's groups were drawn from and what is left over: the run's state moves from `Before` to the result. */
export interface CollectInput {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly step: number;
  readonly curriculum: CurriculumState;
  readonly surplus: readonly KeptGroups[];
  /** The newest version the servers hold, asked again for every round. */
  readonly newestPolicy: () => PolicyVersion;
}

export interface CollectedStep {
  readonly packed: ObjectRef;
  readonly trained: readonly KeptGroups[];
  readonly surplus: readonly KeptGroups[];
  readonly curriculum: CurriculumState;
  /** Ordinals issued for it, first and last of each round. */
  readonly issued: readonly (readonly [first: number, last: number])[];
  readonly ended: readonly EndedRanges[];
  readonly rows: number;
  readonly figures: Readonly<Record<string, number>>;
}

/**
 * Samples until there is at least half a batch of groups with a signal, then packs a batch: lease → generate → score →
 * filter, and again if too little was kept. Surplus groups of the step before come first.
 */
export async function collectStep(desk: RunDesk, input: CollectInput): Promise<CollectedStep> {
  const { run, spec, datasets, step } = input;
  const groupsPerBatch = spec.batchSize / spec.rolloutsPerExample;
  const issued: [number, number][] = [];
  const ended: EndedRanges[] = [];
  const scoredRounds: ObjectRef[] = [];
  const solved = { all: 0, none: 0 };
  const spent = { generate_s: 0, score_s: 0, adopted: 0 };
  let { curriculum } = input;
  let kept: readonly KeptGroups[] = input.surplus;
  let fruitlessRounds = 0;

  for (;;) {
    const selection = selectGroups({ step, groupsPerBatch, maxOffPolicySteps: spec.maxOffPolicySteps, kept });
    const ready = countGroups(selection.trained);
    const hasSampled = issued.length > 0;
    if (ready === groupsPerBatch || (hasSampled && ready * 2 >= groupsPerBatch)) {
      if (selection.stale !== '') ended.push({ stale: selection.stale });
      const packed = await local.packBatch({ run, step, trained: selection.trained, scored: scoredRounds });
      return {
        packed: packed.packed,
        trained: selection.trained,
        surplus: selection.surplus,
        curriculum,
        issued,
        ended,
        rows: packed.rows,
        figures: {
          reward: packed.reward,
          ...packed.metrics,
          kept_groups: ready,
          issued_groups: issued.reduce((sum, [first, last]) => sum + last - first + 1, 0),
          solved_all: solved.all,
          solved_none: solved.none,
          rounds: issued.length,
          ...spent,
        },
      };
    }
    if (fruitlessRounds >= samplingRoundsMax) {
      desk.pause(
        `no-signal: ${fruitlessRounds} sampling rounds for step ${step} kept ${ready} of the ${groupsPerBatch} groups a batch needs (${solved.all} groups all right, ${solved.none} all wrong). Choose easier or harder examples, or widen [difficulty_filter]; then resume.`,
      );
      await desk.untilResumed();
      fruitlessRounds = 0;
    }

    const count = Math.ceil((groupsPerBatch - ready) * spec.oversamplingFactor);
    const leased = await local.leaseGroups({ run, step, count, curriculum, datasets, policy: input.newestPolicy() });
    curriculum = leased.curriculum;
    const { round } = leased;
    issued.push([round.first, round.last]);
    const label = `step ${step}: ${count} groups × ${spec.rolloutsPerExample} from v${round.policyStep}`;

    const chunks = Math.min(generateChunks, count);
    const generated = await desk.waitFor(
      `generate ${label}`,
      Promise.all(
        Array.from({ length: chunks }, (_, index) =>
          rollouts.generateRollouts.executeWithOptions({ summary: `${label} (${index + 1}/${chunks})` }, [
            { run, round, chunk: { index, count: chunks } },
          ]),
        ),
      ),
    );
    const score = await desk.waitFor(
      `score ${label}`,
      rollouts.scoreRollouts.executeWithOptions({ summary: `${label}: rubric` }, [
        { run, round, finished: generated.map(({ finished }) => finished) },
      ]),
    );
    const filtered = await local.filterGroups({ run, round, scored: score.scored });

    scoredRounds.push(score.scored);
    ended.push(filtered.ended);
    if (filtered.kept.ordinals !== '') kept = [...kept, filtered.kept];
    fruitlessRounds += 1;
    solved.all += filtered.solved.all;
    solved.none += filtered.solved.none;
    spent.generate_s += Math.max(...generated.map(({ seconds }) => seconds));
    spent.score_s += score.seconds;
    spent.adopted += generated.reduce((sum, { adopted }) => sum + adopted, 0);
  }
}
