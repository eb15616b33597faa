import { z } from 'zod';
import { clientTypes } from './model-access-spec.ts';

/** One server that answers for an alias. */
export const EndpointSpec = z.strictObject({
  /** As the server calls it. */
  model: z.string().min(1),
  baseUrl: z.string().min(1),
  /** The name of the environment variable with the key; null = the server asks for none. */
  apiKeyVar: z.string().nullable(),
  /** null = chat completions. */
  clientType: z.enum(clientTypes).nullable(),
  headers: z.record(z.string(), z.string()),
});

/** A registry of endpoints, normalized: what aliases of models stand for. */
export const EndpointsSpec = z.strictObject({
  schemaVersion: z.literal(1),
  endpoints: z.array(
    z.strictObject({
      id: z.string().min(1),
      /** Groups of rollouts take them in turn. */
      replicas: z.array(EndpointSpec).min(1),
    }),
  ),
});
export type EndpointSpec = z.infer<typeof EndpointSpec>;
export type EndpointsSpec = z.infer<typeof EndpointsSpec>;
