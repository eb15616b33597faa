/** Default activities of evaluations and prompt searches in tests. */
import type { EvalSpec, RunSpec } from '../../config/run-spec.ts';
import type {
  EvaluationHandle,
  EvaluationInput,
  EvaluationResult,
  EvaluationTally,
} from '../../core/eval/evaluation.ts';
import type { RescoredChunk, RescoreInput } from '../../core/eval/rescore.ts';
import type { AnsweredLease, LeasedWork, PlayedSlice, PromptSlice, SearchLease } from '../../core/gepa/leases.ts';
import type { PromptSearchHandle, PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { next, settle } from '../../core/gepa/search.ts';
import type { SearchAnswer, SearchRequest, Texts } from '../../core/gepa/search-state.ts';
import { classicSettings } from '../../core/gepa/settings.ts';
import { emptyTally } from '../../core/eval/tally.ts';
import { type FakeRun, type Fakes, type Input, refOf, type DefaultFakes } from './fake-run.ts';

type Evaluations = Pick<
  DefaultFakes,
  | 'planEvaluations'
  | 'openEvaluation'
  | 'evaluateChunk'
  | 'noteProgress'
  | 'closeEvaluation'
  | 'planNewest'
  | 'judgeEvaluation'
  | 'holdVersion'
  | 'leaveServers'
  | 'findEvaluation'
  | 'recordEvaluation'
>;
type Rescores = Pick<DefaultFakes, 'openRescore' | 'rescoreChunk' | 'closeRescore'>;
type Searches = Pick<
  DefaultFakes,
  | 'planPromptSearch'
  | 'openPromptSearch'
  | 'answerSearch'
  | 'openTrial'
  | 'recordTrial'
  | 'writePrompts'
  | 'closePromptSearch'
>;

/** Tally of a chunk of one example, or of a whole evaluation. */
export function tallyWith(rollouts: number, reward: number): EvaluationTally {
  return { ...emptyTally, rollouts, rewards: rollouts * reward };
}

export function fakeEvaluations(run: FakeRun): Evaluations {
  return {
    planEvaluations: () => ({ inputs: [evaluationOf(run.name, 'one'), evaluationOf(run.name, 'two')], warnings: [] }),
    openEvaluation: ({ input }) => openedEvaluation(input),
    evaluateChunk: ({ chunk }) => ({ chunk, tally: tallyWith(2, 0.5), adopted: 0, seconds: 0.1 }),
    noteProgress: () => undefined,
    closeEvaluation: ({ handle }) => closedEvaluation(handle),
    planNewest: () => [],
    judgeEvaluation: () => null,
    holdVersion: () => 'held',
    leaveServers: () => undefined,
    findEvaluation: ({ step, environment }) => {
      const { policy, state } = run.commitOf(step)!;
      const isRecorded = run.recorded.has(`${environment}@${step}`);
      return { policy, isRecorded, ...(state.prompts ? { prompts: state.prompts } : {}) };
    },
    recordEvaluation: ({ policy: { step }, sampled, greedy }) => {
      const { environment, rollouts, avgReward } = sampled;
      run.recorded.add(`${environment}@${step}`);
      const figures = (reward: number | null) => ({ reward, exact: null });
      return {
        summary: {
          environment,
          step,
          rollouts,
          sampled: figures(avgReward),
          greedy: figures(greedy?.avgReward ?? avgReward),
          says: { prompt: 'abc', completion: 'cba', answer: 'cba', reward: 1 },
        },
        regression: null,
      };
    },
  };
}

/** 3 chunks of 4 rollouts, each of which asks two judges. */
export function fakeRescores(): Rescores {
  return {
    openRescore: ({ input }) => ({
      place: input.results,
      spec: refOf(`${input.results.prefix}rescore.json`),
      name: 'words steps 1–3',
      rubric: 'strict',
      chunks: 3,
      warnings: [],
    }),
    rescoreChunk: ({ chunk }) => rescoredChunk(chunk),
    closeRescore: ({ handle: { place, name, rubric }, judge, seconds }) => ({
      id: '0a1b2c3d',
      place,
      folder: `${place.store}${place.name}/${place.prefix}`,
      name,
      rubric,
      rollouts: 12,
      rescored: 12,
      changed: 3,
      environments: [],
      judge,
      seconds,
    }),
  };
}

export function rescoredChunk(chunk: number, over: Partial<RescoredChunk> = {}): RescoredChunk {
  const use = { calls: 2, tokens: 20 };
  return { chunk, rollouts: 4, changed: 1, failed: 0, use, isOver: false, seconds: 0.1, ...over };
}

export function rescoreOf(name: string, over: Partial<RescoreInput> = {}): RescoreInput {
  return {
    subject: { kind: 'run', name, store: 'file:///nowhere/', steps: { first: 1, last: 3 } },
    environments: [{ id: 'words', name: 'words', args: {} }],
    rubric: { id: 'strict', name: 'strict', args: {} },
    failedOnly: false,
    results: { store: 'file:///nowhere/', name, prefix: 'rescores/0a1b2c3d/' },
    ...over,
  };
}

/** 4 examples in 2 chunks, one after another. */
export function openedEvaluation(input: EvaluationInput): EvaluationHandle {
  return {
    place: input.results,
    spec: refOf(`${input.results.prefix}evaluation.json`),
    environment: input.environment.name,
    model: input.model.model,
    examples: 4,
    rolloutsPerExample: input.rolloutsPerExample,
    attempt: 1,
    chunkExamples: 2,
    chunks: 2,
    inFlight: 1,
    atOnce: 1,
    warnings: [],
  };
}

export function closedEvaluation({ environment, model, place }: EvaluationHandle): EvaluationResult {
  return {
    environment,
    model,
    id: place.name,
    place,
    folder: `${place.store}${place.name}/${place.prefix}`,
    examples: 4,
    rollouts: 4,
    rolloutsPerExample: 1,
    failed: 0,
    avgReward: 0.5,
    avgMetrics: {},
    truncatedShare: null,
    passAtK: {},
    passAllK: {},
    failures: [],
    usage: null,
    cost: null,
    attempt: 1,
    sampled: 4,
    adopted: 0,
    seconds: 1,
    says: null,
  };
}

/** One of a model behind a server. */
export function evaluationOf(name: string, environment: string): EvaluationInput {
  return {
    environment: { id: environment, name: environment, args: {} },
    model: { kind: 'endpoint', model: 'mock', servers: [], sampling: {} },
    numExamples: 4,
    rolloutsPerExample: 1,
    seed: 0,
    shuffleSeed: null,
    maxConcurrent: -1,
    independentScoring: false,
    maxRetries: 2,
    standstillS: 60,
    results: { store: 'file:///nowhere/', name, prefix: `evals/${environment}/` },
  };
}

export function searchOf(name: string, over: Partial<PromptSearchInput> = {}): PromptSearchInput {
  const server = { model: 'mock', baseUrl: 'http://127.0.0.1:9/v1', apiKeyVar: null, headers: {} };
  return {
    environments: [{ id: 'reverse-text', name: 'reverse-text', args: {} }],
    model: { kind: 'endpoint', model: 'mock', servers: [server], sampling: {} },
    reflection: { model: 'mock', servers: [server], fields: {} },
    maxCalls: 40,
    minibatchSize: 3,
    perfectScore: null,
    stateColumns: [],
    numTrain: 6,
    numVal: 4,
    numTest: 0,
    maxConcurrent: 8,
    seed: 0,
    isClassic: true,
    initialPrompt: null,
    results: { store: 'file:///nowhere/', name, prefix: '' },
    savesResults: true,
    isSmallBudgetMeant: true,
    ...over,
  };
}

export function fakeSearches(run: FakeRun): Searches {
  return {
    planPromptSearch: () => ({ input: searchOf(run.name), warnings: [] }),
    openPromptSearch: ({ input }) => openedSearch(input),
    answerSearch: (lease) => answeredLease(lease),
    openTrial: ({ place, policy }) => {
      const asked = (id: string, texts: Texts) => ({
        id: `trial.v${policy.step}.${id}`,
        texts,
        examples: [0, 1, 2, 3],
      });
      const both = [asked('current', { system_prompt: 'text-0' }), asked('winner', { system_prompt: 'text-3' })];
      return {
        handle: openedSearch(searchOf(place.name, { results: place })),
        asked: both.map((one) => ({ ...one, set: 'test' as const, keepsTraces: false })),
      };
    },
    recordTrial: ({ prompt }) => ({
      prompt,
      examples: 4,
      before: 0.25,
      after: 0.75,
      difference: { mean: 0.5, low: 0.25, high: 0.75 },
    }),
    writePrompts: () => undefined,
    closePromptSearch: (input) => closedSearch(input),
  };
}

function openedSearch({
  maxConcurrent,
  environments,
  model,
  reflection,
  maxCalls,
  numTrain,
  numVal,
  numTest,
  isBranch,
  seed,
  results,
}: PromptSearchInput): PromptSearchHandle {
  return {
    place: results,
    spec: refOf(`${results.prefix}search.json`),
    environment: environments.map(({ name }) => name).join('+'),
    model: model.model,
    reflectionModel: reflection.model,
    settings: classicSettings({ seed, maxCalls, trainSize: numTrain, valSize: numVal }),
    start: { system_prompt: 'text-0' },
    numTest: isBranch === true ? 0 : numTest,
    maxConcurrent,
    folder: `${results.store}${results.name}/${results.prefix}`,
    warnings: [],
  };
}

/** Texts are numbered, and each is better than those before it. */
function answerTo(request: SearchRequest): SearchAnswer {
  const { id, texts } = request;
  const number = numberOf(texts);
  if (request.kind === 'reflect') return { kind: 'text', id, text: `text-${number + 1}` };
  const { length } = request.examples;
  return { kind: 'scores', id, scores: request.examples.map(() => scoreOf(number)), paid: length };
}

/** A lease that is answered; its rollouts took so many seconds, one beside the other. */
export function answeredLease({ work }: Pick<SearchLease, 'work'>, seconds = 0.01): AnsweredLease {
  const nothing = { played: [], answers: [], adopted: 0, failed: 0, firstFailure: null, pace: null };
  if (work.kind === 'reflections') return { ...nothing, answers: [work.requests.map(answerTo)] };
  if (work.kind === 'slices') {
    const pace = { seconds, beside: work.slices.flatMap(({ examples }) => examples).length };
    return { ...nothing, played: work.slices.map(playedSlice), pace };
  }
  const answers = [next(work.state).map(answerTo)];
  settle(work.state, answers[0]!); // an answer that does not fit is told here, in the test
  return { ...nothing, answers, pace: work.pace };
}

export function playedSlice({ texts, examples }: PromptSlice): PlayedSlice {
  return { scores: examples.map(() => scoreOf(numberOf(texts))), refused: null };
}

type Work<Kind> = Extract<LeasedWork, { kind: Kind }>;

/** Leases of one kind, in the order in which they were asked for. */
export function leasedAs<Kind extends LeasedWork['kind']>(run: Pick<FakeRun, 'inputs'>, kind: Kind): Work<Kind>[] {
  return run.inputs('answerSearch').flatMap(({ work }) => (work.kind === kind ? [work as Work<Kind>] : []));
}

export function slicesLeased(run: Pick<FakeRun, 'inputs'>): PromptSlice[] {
  return leasedAs(run, 'slices').flatMap(({ slices }) => slices);
}

/** Fakes of leases by their kind, each counted by itself; those that are not given are answered at once. */
export function leasing(of: {
  readonly slices?: (
    slices: readonly PromptSlice[],
    usual: () => AnsweredLease,
  ) => AnsweredLease | Promise<AnsweredLease>;
  readonly search?: (
    work: Work<'search'>,
    call: { readonly nth: number; readonly usual: () => AnsweredLease },
  ) => AnsweredLease | Promise<AnsweredLease>;
}): Pick<Fakes, 'answerSearch'> {
  let nth = 0;
  return {
    answerSearch(lease) {
      const { work } = lease;
      const usual = () => answeredLease(lease);
      if (work.kind === 'search' && of.search) return of.search(work, { nth: ++nth, usual });
      return work.kind === 'slices' && of.slices ? of.slices(work.slices, usual) : usual();
    },
  };
}

function numberOf(texts: Texts | null): number {
  return Number(/\d+$/.exec(texts?.['system_prompt'] ?? 'text-0')![0]);
}

function scoreOf(number: number): number {
  return Math.min(1, number / 4);
}

function closedSearch(input: Input<'closePromptSearch'>) {
  const { handle, result, comparison, seconds, iterations, givenUp, failed } = input;
  const { place, environment, model, reflectionModel, folder, settings } = handle;
  const [best] = Object.values(result.texts);
  return {
    environment,
    model,
    reflectionModel,
    id: place.name,
    place,
    folder,
    best: result.best,
    bestPrompt: result.best === 0 ? null : refOf(`${place.prefix}${best}`),
    bestScore: result.score,
    startScore: 0,
    startCoverage: 4,
    bestCoverage: 4,
    isImproved: result.best > 0,
    candidates: result.candidates.length,
    calls: result.calls,
    maxCalls: settings.maxCalls,
    reflections: result.reflections,
    iterations,
    givenUp,
    failed,
    stopReason: result.stopReason!,
    comparison,
    seconds,
  };
}

/** Evaluation of one environment, greedily: one child for each version. */
export function evaluating(of: Partial<EvalSpec> = {}): EvalSpec {
  const environment = {
    id: 'reverse-text',
    name: 'words',
    args: {},
    numExamples: 4,
    rolloutsPerExample: 1,
    skipFirst: 0,
    interval: null,
    sampling: { maxTokens: 8, temperature: 0 } as RunSpec['sampling'],
  };
  return {
    interval: 2,
    skipFirstStep: false,
    sampling: null,
    when: null,
    onRegression: 'flag',
    environments: [environment],
    ...of,
  };
}
