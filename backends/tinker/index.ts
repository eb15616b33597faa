/** A client of the Tinker API, shared by the trainer and the inference on such servers. */
export { unpackArchive } from './archive.ts';
export { type ClientOptions, TinkerClient } from './client.ts';
export { downloadWeights } from './download.ts';
export { TinkerModel } from './model.ts';
export { decodePassOutput, decodeSampleResponse, encodePassRequest } from './proto.ts';
export { isTrouble, TinkerTrouble } from './trouble.ts';
export type * from './types.ts';
