import { RatchetError } from '../errors.ts';
import type { FinalSettings, SearchSettings } from './search-state.ts';

type SearchSizes = Pick<SearchSettings, 'seed' | 'maxCalls' | 'trainSize' | 'valSize'>;

type SearchOptions = SearchSizes & Partial<SearchSettings>;

/** Defaults of gepa 0.1.4 as verifiers runs it, with a budget that is kept. */
export function classicSettings(options: SearchOptions): SearchSettings {
  return requireSound({
    minibatchSize: 3,
    perfectScore: null,
    candidateSelection: { kind: 'pareto' },
    frontier: 'instance',
    componentSelection: 'round_robin',
    acceptance: 'strict_improvement',
    proposals: 1,
    countsTextsOnce: true,
    proposalSelection: 'all',
    parallel: 1,
    overlapsValidation: false,
    screen: null,
    merge: null,
    stop: [],
    skipsUnchanged: false,
    skipsTried: false,
    reusesMinibatch: false,
    seedsReflection: false,
    attemptsMax: 3,
    idleIterationsMax: 50,
    overshoots: false,
    ...options,
  });
}

/**
 * Ratchet's defaults: more attempts for equally many calls. An accepted text is scored on part of the validation
 * examples, the best few on more of them at the end, and the best of these on the rest. Known texts are not scored
 * again. The best of several children of one minibatch is validated, and meanwhile the next iteration begins from it.
 * If the budget is large, up to three iterations run in parallel while they bring nothing. Chosen by `bench gepa`.
 */
export function defaultSettings(options: SearchOptions): SearchSettings {
  const { valSize, maxCalls } = options;
  const screen = options.screen === undefined ? Math.max(5, Math.ceil(valSize / 10)) : options.screen;
  return classicSettings({
    screen,
    final: finalOf({ screen, valSize, maxCalls }),
    skipsUnchanged: true,
    skipsTried: true,
    reusesMinibatch: true,
    seedsReflection: true,
    proposals: proposalsOf(maxCalls),
    parallelMax: Math.min(3, Math.max(1, Math.floor(maxCalls / 160))),
    proposalSelection: 'best',
    overlapsValidation: true,
    ...options,
  });
}

function finalOf({
  screen,
  valSize,
  maxCalls,
}: Pick<SearchSettings, 'screen' | 'valSize' | 'maxCalls'>): FinalSettings {
  return {
    candidates: Math.min(4, Math.max(1, Math.floor(maxCalls / 120))),
    examples: Math.max(1, Math.ceil((valSize - (screen ?? valSize)) / 3)),
    lead: 1,
  };
}

function proposalsOf(maxCalls: number): number {
  return Math.min(8, Math.max(2, Math.floor(maxCalls / 62)));
}

/** gepa's defaults for merging. */
export const mergeDefaults = { maxInvocations: 5, overlapFloor: 5, subsample: 5 } as const;

/**
 * The smallest budget that lets a search try something: the validation of the start and three accepted iterations.
 * `arithmetic` explains it to people.
 */
export function leastBudget({ valSize, minibatchSize }: Pick<SearchSettings, 'valSize' | 'minibatchSize'>): {
  readonly calls: number;
  readonly arithmetic: string;
} {
  const calls = valSize + 3 * (minibatchSize + valSize);
  const arithmetic =
    `${valSize} (the start on all validation examples) + 3 × (${minibatchSize} (a minibatch) + ${valSize} ` +
    `(an accepted prompt on all validation examples)) = ${calls}`;
  return { calls, arithmetic };
}

function requireSound(settings: SearchSettings): SearchSettings {
  const positive = ['maxCalls', 'trainSize', 'valSize', 'minibatchSize', 'proposals', 'parallel'] as const;
  for (const name of positive) {
    const value = settings[name];
    if (!Number.isInteger(value) || value < 1) refuse(name, 'a whole number ≥ 1', value);
  }
  const { screen, valSize, maxCalls, overshoots } = settings;
  if (screen !== null && (!Number.isInteger(screen) || screen < 1))
    refuse('screen', 'a whole number ≥ 1, or null', screen);
  if (maxCalls < valSize && !overshoots)
    refuse('maxCalls', `at least ${valSize}, the validation examples that the best is scored on`, maxCalls);
  if (screen === null || screen >= valSize) return { ...settings, screen: null };
  return { ...settings, final: settings.final ?? finalOf(settings) };
}

function refuse(name: string, expected: string, received: unknown): never {
  throw new RatchetError('ConfigInvalid', `${name} of a prompt search must be ${expected}; it is ${String(received)}.`);
}
