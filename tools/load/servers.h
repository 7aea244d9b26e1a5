/* SPDX-License-Identifier: Apache-2.0 */
/*
 * servers: how this process speaks to the servers that its sources are on.
 */
#pragma once

/*
 * Have core know the environment, and where the user's profiles and tokens lie. Any number of
 * times, any thread.
 */
void load_servers(void);
