import { z } from 'zod';
import { promptComponents } from '../core/gepa/prompt-parts.ts';
import { frontierTypes, selectionStrategies } from '../core/gepa/tuning.ts';
import { ModelAccessSpec } from './model-access-spec.ts';

/** A file of `ratchet gepa run`, normalized: how a system prompt is optimized. */
const free = z.record(z.string(), z.json());

export const GepaSpec = z.strictObject({
  schemaVersion: z.literal(1),
  /** Several are optimized for together, with balanced counts of examples. */
  environments: z
    .array(
      z.strictObject({
        id: z.string().min(1),
        name: z.string().min(1),
        args: free,
        extraKwargs: free,
        /** Names of environment variables that it sees beside the usual ones. */
        variables: z.array(z.string()).default([]),
      }),
    )
    .min(1),
  /** Where environments of the project lie. From the working folder unless absolute. */
  environmentsFolder: z.string().min(1),
  model: ModelAccessSpec,
  /** Proposes prompts; a model's id or an alias of the registry. null = the same model. */
  reflectionModel: z.string().min(1).nullable(),
  /** Request fields of rollouts. */
  sampling: free,
  /** Rollouts that may be scored in all. */
  maxCalls: z.int().positive(),
  minibatchSize: z.int().positive(),
  /** Minibatches that score this much are not reflected on. */
  perfectScore: z.number().nullable(),
  /** Columns of the rollout's state that reflection sees as well. */
  stateColumns: z.array(z.string()),
  numTrain: z.int(),
  numVal: z.int(),
  maxConcurrent: z.int(),
  seed: z.int().min(0),
  /** gepa's own search, with a budget that is never exceeded. */
  classic: z.boolean().default(false),
  /** Examples, of neither kind, that the first and the best prompt are scored on at the end; −1 = all that are left, 0 = none. */
  numTest: z.int().default(0),
  /** What is written anew. */
  components: z.array(z.enum(promptComponents)).min(1).default(['system_prompt']),
  /** Candidates that changed different components are merged as well. */
  merge: z.boolean().default(false),
  /** What is set of the search itself; what is missing is chosen for the budget. */
  tuning: z
    .strictObject({
      screen: z.int().optional(),
      proposals: z.int().positive().optional(),
      parallel: z.int().positive().optional(),
      selection: z.array(z.enum(selectionStrategies)).min(1).optional(),
      frontier: z.enum(frontierTypes).optional(),
    })
    .default({}),
  /** What is begun with in place of the environment's system prompt. */
  initialPrompt: z.string().nullable().default(null),
  runDir: z.string().nullable(),
  savesResults: z.boolean(),
});
export type GepaSpec = z.infer<typeof GepaSpec>;
