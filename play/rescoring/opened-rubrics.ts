import type { RescoreHandle, RescoreInput } from '../../core/eval/rescore.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { Environment, Environments } from '../../backends/environments/index.ts';
import { openRubric, type Scoring } from '../../backends/environments/other-rubric.ts';
import { environmentsOfRescore } from '../environment-users.ts';

/** What scores the rollouts of one environment. */
export type OpenedRubric = Pick<Scoring, 'rubric' | 'stateAfter' | 'judge' | 'isComparing'>;

/** The environments of a rescore, and what scores the rollouts of each. Both are opened when they are first needed. */
export function openRubrics(
  environments: Environments | undefined,
  { environments: entries, rubric }: Pick<RescoreInput, 'environments' | 'rubric'>,
  handle: Pick<RescoreHandle, 'place'>,
): {
  readonly open: (environment: string) => Promise<Environment>;
  readonly rubricOf: (environment: string) => Promise<OpenedRubric>;
} {
  const ofRescore = environmentsOfRescore(environments, handle);
  const opened = new Map<string, Promise<OpenedRubric>>();
  const entryOf = (name: string) => {
    const entry = entries.find((one) => one.name === name);
    if (entry) return entry;
    const known = entries.map((one) => one.name).join(', ');
    throw new RatchetError('ConfigInvalid', `Stored rollouts are of an environment "${name}", which is not among ${known}: it was renamed or taken out since. Rescore the steps that have the present ones: --steps FIRST-LAST.`); // prettier-ignore
  };
  const open = async (name: string): Promise<Environment> => ofRescore.open(entryOf(name));
  const openOne = async (name: string): Promise<OpenedRubric> => {
    const scoring = rubric === null ? await open(name) : await openRubric(ofRescore, rubric);
    requireStored(scoring, name);
    const entry = entryOf(name);
    if (scoring.judge && rubric?.python && !entry.python) throw ofOtherRows(scoring.name, name);
    // A rubric beside no environment sees the state that the rollouts' own environment rebuilds.
    const isBare = rubric !== null && scoring.stateAfter === undefined && scoring.judge === undefined;
    const state = isBare && !entry.python ? await open(name) : scoring;
    const stateAfter: Scoring['stateAfter'] =
      state.stateAfter && ((example, turns) => state.stateAfter!(example, turns));
    const { rubric: functions, judge, isComparing } = scoring;
    return { rubric: functions, ...present({ stateAfter, judge, isComparing }) };
  };
  return {
    open,
    rubricOf: (name) => {
      const known = opened.get(name) ?? openOne(name);
      opened.set(name, known);
      return known;
    },
  };
}

/** Refuses a rubric that scores in place: the state that it reads ended with its rollout. */
export function requireStored({ name, scoring }: Pick<Scoring, 'name' | 'scoring'>, environment: string): void {
  if (scoring !== 'in_place') return;
  const whose = name === environment ? environment : `The rubric of ${name}`;
  throw new RatchetError(
    'Unsupported',
    `${whose} scores in place: it reads a sandbox or a state that ended with its rollout, so stored rollouts cannot be scored again. Name a rubric that scores what is stored: --rubric FILE.`,
  );
}

function ofOtherRows(rubric: string, environment: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `The rubric of ${rubric} scores rows that verifiers wrote; ${environment} is in TypeScript, and its rollouts have none. Name a rubric in TypeScript: --rubric FILE.`,
  );
}
