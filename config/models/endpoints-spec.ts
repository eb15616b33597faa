import { z } from 'zod';
import { clientTypes } from '../../core/eval/model-access.ts';

/** One server of an alias. */
export const EndpointSpec = z.strictObject({
  /** The server's name for the model. */
  model: z.string().min(1),
  baseUrl: z.string().min(1),
  /** Name of the environment variable with the key; null = the server needs none. */
  apiKeyVar: z.string().nullable(),
  /** null = chat completions. */
  clientType: z.enum(clientTypes).nullable(),
  headers: z.record(z.string(), z.string()),
});

/** A registry of endpoints, normalized: the models behind aliases. */
export const EndpointsSpec = z.strictObject({
  schemaVersion: z.literal(1),
  endpoints: z.array(
    z.strictObject({
      id: z.string().min(1),
      /** Groups of rollouts use them in turn. */
      replicas: z.array(EndpointSpec).min(1),
    }),
  ),
});
export type EndpointSpec = z.infer<typeof EndpointSpec>;
export type EndpointsSpec = z.infer<typeof EndpointsSpec>;
