import { z } from 'zod';
import { adoptions } from './eval-words.ts';

const positive = z.int().positive();

/** Searches for better system prompts (GEPA) that branch off the run while it trains. */
export const PromptBranchSpec = z.strictObject({
  /** Steps between branches; null = at `atSteps` and when asked. */
  interval: positive.nullable(),
  /** Ascending. */
  atSteps: z.array(z.int().min(0)),
  /** Names of the run's. */
  environments: z.array(z.string()),
  /** Writes prompts anew; it answers chat completions at `url`. */
  reflectionModel: z.string().min(1),
  url: z.url(),
  /** Name of the environment variable with its key; null = it asks for none. */
  apiKeyVar: z.string().nullable(),
  maxCalls: positive,
  numTrain: positive,
  numVal: positive,
  /** Examples, of neither kind, that the winner and the prompt in use are played on once more; 2 at least. */
  numTest: z.int().min(2),
  minibatchSize: positive,
  perfectScore: z.number().nullable(),
  stateColumns: z.array(z.string()),
  maxConcurrent: positive,
  adopt: z.enum(adoptions),
});
export type PromptBranchSpec = z.infer<typeof PromptBranchSpec>;
